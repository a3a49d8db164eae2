"""n-grams: what can be predicted from the last few tokens alone, by counting. The baseline that a network has to beat."""
