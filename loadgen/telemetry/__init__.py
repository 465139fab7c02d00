"""What is seen beside the requests: the server's load and the client's own, on the driver's clock, and the host."""
