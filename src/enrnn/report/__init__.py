"""The page and the tables that a person reads, made from what `enrnn.paper.collect` returns. Needs the standard library alone."""

from ._cells import columns as columns
from ._markdown import claims_in_words as claims_in_words
from ._markdown import grid_markdown as grid_markdown
from ._markdown import ours_markdown as ours_markdown
from ._markdown import picture_markdown as picture_markdown
from ._markdown import results_markdown as results_markdown
from ._numbers import duration as duration
from ._picture import figure_svg as figure_svg
from ._write import write as write
