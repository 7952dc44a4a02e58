"""What a run found: tables and files, figures, a time line, a page."""
