"""The parts of `python -m spectral_flax.steer`: a copy of a model that draws tokens to a direction.

command                 the whole of it, on somebody else's weights or a run of ours
direction, vocabulary   token:WORD, vector:FILE or random:SEED -> a vector
change                  the new output projections, layer by layer
folder                  the copy, in which only they differ
effect                  alignment, and a language model's likeliest tokens, before and after
report                  all that as text and JSON
"""
