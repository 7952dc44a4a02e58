"""From the logs of a server to the profile of its iterations; see ``docs/fit.md``."""
