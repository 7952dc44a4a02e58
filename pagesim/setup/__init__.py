"""The setup of a run: options, parts and policies by name, and a system prepared for a trace."""
