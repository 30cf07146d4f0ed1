"""AdaBelief (Zhuang et al. 2020), epsilon inside of the average, with RectifiedAdam's options.

With row gradients, averages decay in all rows. The squared difference of gradient and average, and
epsilon, are added in touched rows only.
"""

from tests.reference.rectified_adam import RectifiedAdam


class AdaBelief(RectifiedAdam):
    def __init__(self, epsilon=1e-14, rectify=True, **arguments):
        super().__init__(epsilon=epsilon, **arguments)
        self.rectify = rectify

    def moments(self, g, s):
        m = s["m"] + (1 - self.beta_1) * (g - s["m"])
        v = self.beta_2 * s["v"] + (1 - self.beta_2) * (m - g) ** 2 + self.epsilon
        return m, v

    def update_moving(self, g, x, s, step, path, rows):
        m, seen = self.moments(g, s)
        v = self.beta_2 * s["v"]
        v[rows] = seen[rows]
        return self.moved(x, s, m, v, step)
