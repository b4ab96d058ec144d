"""CSL text to syntax tree and back."""
