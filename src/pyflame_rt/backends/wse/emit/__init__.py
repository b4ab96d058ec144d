"""CSL text: PE programs, the layout, the host program and the directory they stand in."""
