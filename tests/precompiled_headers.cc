// A precompiled header belongs to a target: this is the program that has it (see CMakeLists.txt).
int main() {}
