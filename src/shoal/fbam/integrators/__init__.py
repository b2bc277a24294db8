"""Integrators behind one interface: LSTM, causal transformer, gated linear scan."""

from shoal.fbam.integrators.gated_scan import ScanIntegrator
from shoal.fbam.integrators.interface import Integrator, State
from shoal.fbam.integrators.lstm import LSTMIntegrator
from shoal.fbam.integrators.transformer import TransformerIntegrator
from shoal.fbam.model_config import ModelConfig

__all__ = ["Integrator", "LSTMIntegrator", "ScanIntegrator", "State", "TransformerIntegrator", "build_integrator"]


def build_integrator(config: ModelConfig) -> Integrator:
    match config.integrator:
        case "lstm":
            return LSTMIntegrator(config.width, config.layers)
        case "transformer":
            return TransformerIntegrator(config.width, config.layers, config.heads)
        case "scan":
            return ScanIntegrator(config.width, config.layers)
