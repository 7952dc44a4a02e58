"""Results of a run: tables, files, figures, timelines and report pages."""
