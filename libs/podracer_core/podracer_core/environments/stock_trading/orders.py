"""What a broker does with the orders of N accounts for K stocks: sells first, then buys within the cash."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Broker"]

# Keeps what is left of a purchase, whose cost is summed up with rounding, from costing more than the cash.
_MARGIN = 1 - 1e-12


@dataclass(frozen=True, slots=True)
class Broker:
    """Costs are fractions of the traded value. No order for fewer than `minimum_trade` shares is executed, but the
    last shares of a stock can always be sold."""

    buy_cost: float
    sell_cost: float
    minimum_trade: int

    def execute(self, orders: Tensor, price: Tensor, cash: Tensor, shares: Tensor) -> Tensor:
        """The shares that change hands, [N, K]: positive bought, negative sold. Writes `cash` [N] and `shares` [N, K].

        `orders` float64 [N, K] in shares, rounded toward zero; `price` [N, K]. A sale takes what there is. Purchases
        that together cost more than the cash are all cut by the same factor and rounded down, so that the order of the
        stocks plays no part: permuting them permutes what is bought.
        """
        sold = torch.maximum(orders.clamp(max=0.0).ceil_(), -shares)
        bought = orders.clamp(min=0.0).floor_()
        if self.minimum_trade > 1:
            sold.masked_fill_((sold > -self.minimum_trade) & (sold > -shares), 0.0)
            bought.masked_fill_(bought < self.minimum_trade, 0.0)
        cash.sub_((sold * price).sum(1), alpha=1 - self.sell_cost)
        cost = (bought * price).sum(1).mul_(1 + self.buy_cost)
        part = torch.where(cost > cash, cash / cost * _MARGIN, 1.0)
        bought.mul_(part[:, None]).floor_()
        if self.minimum_trade > 1:
            bought.masked_fill_(bought < self.minimum_trade, 0.0)
        # The subtraction rounds otherwise than `cost` did: a purchase for all of the cash might overdraw its last bit.
        cash.sub_((bought * price).sum(1), alpha=1 + self.buy_cost).clamp_(min=0.0)
        traded = sold.add_(bought)
        shares.add_(traded)
        return traded
