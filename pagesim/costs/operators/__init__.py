"""Operator tables of AIConfigurator: what single operators take on a GPU, and a model's iteration of them."""
