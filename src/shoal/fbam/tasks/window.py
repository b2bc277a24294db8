"""Shortcut floors of finite automata: what a reader of the last few inputs reaches, and which window explains what."""

import math
from statistics import NormalDist

import numpy as np

from shoal.fbam.tasks.interface import Task

CONFIDENCE = 0.99  # one-sided, that a model's accuracy is above a window's floor
SAMPLES = 16_384  # windows that a floor is averaged over: a standard error of 0.002 at most for two classes


def window_accuracy(
    prior_S: np.ndarray, next_state_IS: np.ndarray, windows_NW: np.ndarray, class_S: np.ndarray
) -> float:
    """Accuracy of the Bayes-optimal guess of the final state's class, averaged over windows of inputs.

    `prior` is the distribution of the state before the window. It must not depend on the window's inputs.
    """
    count = len(windows_NW)
    states_NS = np.broadcast_to(np.arange(len(prior_S)), (count, len(prior_S)))
    for inputs_N in windows_NW.T:
        states_NS = next_state_IS[inputs_N[:, None], states_NS]
    classes = int(class_S.max()) + 1
    cell_NS = np.arange(count)[:, None] * classes + class_S[states_NS]
    weight_NC = np.bincount(cell_NS.ravel(), np.tile(prior_S, count), count * classes).reshape(count, classes)
    return float(weight_NC.max(axis=1).mean())


def next_distribution(prior_S: np.ndarray, next_state_IS: np.ndarray, weights_I: np.ndarray) -> np.ndarray:
    """The distribution of the state after one more input that is drawn with these weights."""
    return np.bincount(next_state_IS.ravel(), np.outer(weights_I, prior_S).ravel(), len(prior_S))


def accuracy_lower_bound(accuracy: float, sequences: int) -> float:
    """The accuracy that a model has at least, with CONFIDENCE, when it was `accuracy` on so many drawn sequences.

    The lower end of the score interval (Wilson, 1927), which stays between 0 and 1 for accuracies near them.
    """
    z = NormalDist().inv_cdf(CONFIDENCE)
    spread = z * math.sqrt(accuracy * (1 - accuracy) / sequences + (z / (2 * sequences)) ** 2)
    return (accuracy + z**2 / (2 * sequences) - spread) / (1 + z**2 / sequences)


def equivalent_window(task: Task, length: int, accuracy: float, sequences: int) -> int:
    """The smallest window that explains an accuracy measured on so many sequences.

    A reader of so many last frames could have reached it but for sampling error: a model at chance gets 0, though half
    of such models are a little above the floor.
    """
    shown = accuracy_lower_bound(accuracy, sequences)
    low, high = 0, task.frames(length)
    while low < high:
        middle = (low + high) // 2
        if task.window_floor(length, middle) >= shown:
            high = middle
        else:
            low = middle + 1
    return low
