"""Questions that the paper's readers ask and no figure of it answers."""
