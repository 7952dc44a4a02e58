"""AIConfigurator's operator tables: timings of single operators on a GPU, and iterations built from them."""
