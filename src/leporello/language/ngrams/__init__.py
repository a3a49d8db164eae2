"""n-grams: what can be predicted from the last few tokens alone, by counting: the baseline of a network."""
