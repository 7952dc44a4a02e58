"""What a run is made of: options, parts and policies by name, and a system made ready for a trace."""
