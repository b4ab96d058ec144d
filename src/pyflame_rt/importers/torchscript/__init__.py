"""TorchScript archives to graphs, without torch: the code of the file is interpreted symbolically, never executed."""
