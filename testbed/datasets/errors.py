"""What can be wrong with data.

DataError     a data set or a division of it cannot be had as asked
"""


class DataError(ValueError):
    """A data set, or a division of it, cannot be had; one line says why and what to do.

    Attributes:
        where: The data set, file or setting at fault.
        problem: The rule broken and the value found.
        what_to_do: What a person should do next.
    """

    def __init__(self, where: str, problem: str, what_to_do: str) -> None:
        super().__init__(f"{where}: {problem}; {what_to_do}")
        self.where = where
        self.problem = problem
        self.what_to_do = what_to_do
