# Names: `Stack.top`
import torch
import stepmem


class Node:
    def __init__(self, value, below):
        self.value = value
        self.below = below


class Stack:
    def __init__(self):
        self.top = None

    def push(self, value):
        self.top = Node(value, self.top)


def main():
    stack = Stack()
    for step in range(300):
        stack.push(torch.randn(32))
        stepmem.step_end(step)


main()
