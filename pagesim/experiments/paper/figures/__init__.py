"""The paper's figures and tables, one a module."""
