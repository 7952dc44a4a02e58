"""From the logs of a server to the profile of its iterations; see ``docs/how-to/fit.md``."""
