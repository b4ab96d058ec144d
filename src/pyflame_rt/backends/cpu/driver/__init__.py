"""The native driver: walks the steps of a plan in one call, on as many threads as pay."""
