"""torch_ccl.single_card under the name that scripts import."""

from torch_ccl.single_card import single_card_dist

__all__ = ["single_card_dist"]
