"""What a check has to say against a result. Without PyTorch, so that an expectation can be made without it."""


class Report:
    """Counts mismatches and prints the first of them."""

    def __init__(self, limit):
        self.n_bad, self.limit, self.lines = 0, limit, []

    def bad(self, message):
        self.n_bad += 1
        if self.n_bad <= self.limit:
            print("  MISMATCH", message)


class Collected(Report):
    """Keeps what it is told, and prints nothing."""

    def __init__(self):
        super().__init__(0)

    def bad(self, message):
        super().bad(message)
        self.lines.append(message)
