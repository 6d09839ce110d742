"""What others ask of the kernels; nothing here is imported by the library itself."""
