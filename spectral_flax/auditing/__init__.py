"""The parts of `python -m spectral_flax.audit`: what is audited, measured, and written.

run                        the whole of it, and the demonstrations figure1 and sphere
own_run, pretrained        a training run, or somebody else's weights -> Subject
measure                    Subject -> Audit: plain numbers, layer by layer
alignment, shared_weights  Subject -> AlignmentAudit: what --alignment adds
verdict                    Audit -> one sentence
report, page, output       Audit -> table, JSON, CSV, HTML page; and the folder they go to
"""
