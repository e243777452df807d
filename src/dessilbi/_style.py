"""Colours of figures that the colour-blind can tell apart."""

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Without yellow, which is hard to see on white; curves beyond these take greys of their own."""
BLUE, GREEN = OKABE_ITO[0], OKABE_ITO[2]
