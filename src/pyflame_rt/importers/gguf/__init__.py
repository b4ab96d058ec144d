"""Models as llama.cpp keeps them: weights in blocks, settings and tokens in one file."""
