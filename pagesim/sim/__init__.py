"""The simulation itself: the clock, the engine loop with its fast-forward, and iteration times."""
