"""Explain: where a classifier looks; model and batch in, heat maps and attributions out."""

from __future__ import annotations

from spurless.explain.attribution import attribute, attribution_map
from spurless.explain.boundaries import Film, Watch, boundary, film
from spurless.explain.cam import gradcam, xgradcam
from spurless.explain.clouds import representation_section
from spurless.explain.compared import attribution_section
from spurless.explain.films import animation, boundary_section, curves, save_gif
from spurless.explain.heat import EXPLAINERS, Explainer, all_maps, maps
from spurless.explain.neurons import neuron_map, neuron_sections, synthetic_section
from spurless.explain.pictures import chosen, contrast
from spurless.explain.subnetworks import subnetwork_sections
from spurless.explain.target import Target, find_target
from spurless.explain.tokens import token_attribution

__all__ = [
    "EXPLAINERS",
    "Explainer",
    "Film",
    "Target",
    "Watch",
    "all_maps",
    "animation",
    "attribute",
    "attribution_map",
    "attribution_section",
    "boundary",
    "boundary_section",
    "chosen",
    "contrast",
    "curves",
    "film",
    "find_target",
    "gradcam",
    "maps",
    "neuron_map",
    "neuron_sections",
    "representation_section",
    "save_gif",
    "subnetwork_sections",
    "synthetic_section",
    "token_attribution",
    "xgradcam",
]
