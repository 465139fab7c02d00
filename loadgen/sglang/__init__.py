"""What runs in SGLang's own environment, and what that environment needs on a CPU.

batch   one fixed batch straight into SGLang's model runner: the static mode
cpu     stand-ins, arguments and a tiny model for machines without a GPU
"""
