"""Heat maps and attributions of classifiers, and the figures of the papers."""

from __future__ import annotations

from spurless.explain.attribution import attribute, compute_attribution_map
from spurless.explain.cam import gradcam, xgradcam
from spurless.explain.figures.compare_models import build_attribution_section
from spurless.explain.figures.decision_boundary import (
    BoundaryHistory,
    build_boundary_section,
    plot_boundary_curves,
    plot_boundary_slider,
    predict_plane,
    record_boundaries,
)
from spurless.explain.figures.neurons import build_neuron_sections, build_synthetic_section, compute_neuron_map
from spurless.explain.figures.pruning import build_subnetwork_sections
from spurless.explain.figures.tsne import build_representation_section
from spurless.explain.maps import EXPLAINERS, Explainer, compute_heat_maps, iterate_heat_maps
from spurless.explain.overlays import choose_examples, compare_heat_maps
from spurless.explain.target_layer import TargetLayer, find_target_layer
from spurless.explain.tokens import attribute_tokens

__all__ = [
    "EXPLAINERS",
    "BoundaryHistory",
    "Explainer",
    "TargetLayer",
    "attribute",
    "attribute_tokens",
    "build_attribution_section",
    "build_boundary_section",
    "build_neuron_sections",
    "build_representation_section",
    "build_subnetwork_sections",
    "build_synthetic_section",
    "choose_examples",
    "compare_heat_maps",
    "compute_attribution_map",
    "compute_heat_maps",
    "compute_neuron_map",
    "find_target_layer",
    "gradcam",
    "iterate_heat_maps",
    "plot_boundary_curves",
    "plot_boundary_slider",
    "predict_plane",
    "record_boundaries",
    "xgradcam",
]
