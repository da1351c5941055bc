"""The largest batch or the longest row that fits a card, for each combination: bisection over cells of a sweep."""
