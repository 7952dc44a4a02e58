"""The simulation itself: simulated time, the loop that leaps through it, and what an iteration takes."""
