"""The parts of `python -m spectral_flax.audit`: what is audited, measured, and written.

own_run, pretrained    a training run, or somebody else's weights -> Subject
measure                Subject -> Audit: plain numbers, layer by layer
report, page, output   Audit -> table, JSON, CSV, HTML page; and the folder they go to
"""
