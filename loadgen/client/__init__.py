"""To whom the load goes: the bodies of the driver's one narrow seam, `loadgen.driver.Client`."""
