"""Triton kernels: CaffeNet's training pass and the rendering of crops. Import its modules only where Triton is."""
