"""The page and the tables that a person reads, made from what `enrnn.paper.collect` returns. Needs the standard library alone."""

from ._markdown import results_markdown as results_markdown
from ._picture import figure_svg as figure_svg
from ._write import write as write
