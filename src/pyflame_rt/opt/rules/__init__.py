"""The rules, one file for each rewrite; found by listing this folder."""
