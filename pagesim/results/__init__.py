"""Results of a run: tables, files, figures and report pages."""
