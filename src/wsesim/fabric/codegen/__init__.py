"""PE programs as Python source and as native functions."""
