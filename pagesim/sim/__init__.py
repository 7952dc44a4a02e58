"""The simulation itself: the clock, the engine's loop with its fast-forward, and what an iteration takes."""
