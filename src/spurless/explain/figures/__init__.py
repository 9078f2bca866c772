"""Page sections that redraw the papers' figures."""
