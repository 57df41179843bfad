"""Negative controls: what is changed of a spec or of its dense tensors, and has to be noticed, one for each axis."""

from . import chosen, deepseek_v4, gemma, general, linear, llama4, plain, residual, sparse_attention

SPEC_CHANGES = {
    **chosen.SPEC_CHANGES,
    **general.SPEC_CHANGES,
    **gemma.SPEC_CHANGES,
    **linear.SPEC_CHANGES,
    **llama4.SPEC_CHANGES,
    **plain.SPEC_CHANGES,
    **residual.SPEC_CHANGES,
    **sparse_attention.SPEC_CHANGES,
    **deepseek_v4.SPEC_CHANGES,
}
DENSE_CHANGES = {
    **chosen.DENSE_CHANGES,
    **general.DENSE_CHANGES,
    **gemma.DENSE_CHANGES,
    **linear.DENSE_CHANGES,
    **residual.DENSE_CHANGES,
    **sparse_attention.DENSE_CHANGES,
    **deepseek_v4.DENSE_CHANGES,
}
