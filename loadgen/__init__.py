"""loadgen drives LLM servers with the arrival pattern you ask for, and says what that pattern cost."""

__version__ = "0.1.0"
