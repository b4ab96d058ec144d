"""Machine code: IR compiled for this host, loaded, kept on disk."""
