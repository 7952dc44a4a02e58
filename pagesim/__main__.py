"""``python -m pagesim``: the command line."""

from pagesim.cli.main import app

if __name__ == "__main__":
    app()
