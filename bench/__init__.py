"""Side-by-side benchmarks: each compares with a peer or with the raw limit, in one run, and prints ratios."""
