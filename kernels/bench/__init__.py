"""The bench: what the kernels and swaps take, over grids, in rows that say how they were measured."""
