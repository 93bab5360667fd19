/* The identity tests of guards: do captures of a compiled function hold what they held? See wayfare/compiler/captures/guards.py. */

enum { AN_ITEM, AN_ATTRIBUTE, A_LENGTH, PRESENT, ABSENT, OF_CELL, OF_CODE };
static const char *const TEST_KINDS[] = {"item", "attribute", "length", "present", "absent"};

typedef struct { int kind; PyObject *holder, *key, *value; Py_ssize_t length; } Test;
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *all;  /* what the tests refer to: (kind, holder, key, value) of each */
    Test *tests;
    Py_ssize_t count;
} Tests;
static PyTypeObject *TestsType;

/* Does a test hold? -1: an error. */
static inline int test_holds(Test *test) {
    PyObject *holder = test->holder, *found;
    Py_ssize_t length;
    int there;
    switch (test->kind) {
    case OF_CELL: return PyCell_GET(holder) == test->value;
    case OF_CODE: return PyFunction_GET_CODE(holder) == test->value;
    case A_LENGTH:
        length = PyDict_CheckExact(holder) ? PyDict_GET_SIZE(holder) : PyObject_Size(holder);
        return length < 0 ? -1 : length == test->length;
    case PRESENT: case ABSENT:
        there = PySequence_Contains(holder, test->key);
        return there < 0 ? -1 : there == (test->kind == PRESENT);
    case AN_ITEM:
        if (PyDict_CheckExact(holder)) {
            found = PyDict_GetItemWithError(holder, test->key);
            return found == NULL && PyErr_Occurred() ? -1 : found == test->value;
        }
        found = PyObject_GetItem(holder, test->key);
        break;
    default: found = PyObject_GetAttr(holder, test->key);
    }
    if (found == NULL) return -1;
    Py_DECREF(found);  /* only its identity matters */
    return found == test->value;
}

/* Do all hold? -1: an error, as if something is gone that a test looks at. */
static int all_hold(Tests *self) {
    int all = 1;
    for (Py_ssize_t i = 0; i < self->count && all > 0; i++) all = test_holds(&self->tests[i]);
    return all;
}

/* tests() */
static PyObject *tests_call(Tests *self, PyObject *const *args, size_t flags, PyObject *names) {
    if (names != NULL || PyVectorcall_NARGS(flags) != 0) { PyErr_SetString(PyExc_TypeError, "tests()"); return NULL; }
    int all = all_hold(self);
    return all < 0 ? NULL : PyBool_FromLong(all);
}

/* GuardTests(tests): a tuple of (kind, holder, key, value). */
static PyObject *tests_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *all;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &all)) return NULL;
    Tests *self = (Tests *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = (vectorcallfunc)tests_call;
    self->all = Py_NewRef(all);
    self->tests = PyMem_Calloc(PyTuple_GET_SIZE(all) + 1, sizeof(Test));
    if (self->tests == NULL) { Py_DECREF(self); return PyErr_NoMemory(); }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        Test *test = &self->tests[i];
        PyObject *given = PyTuple_GET_ITEM(all, i), *kind = NULL;
        if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "UOOO", &kind, &test->holder, &test->key, &test->value)) goto bad;
        for (test->kind = 0; test->kind <= ABSENT; test->kind++)
            if (PyUnicode_CompareWithASCIIString(kind, TEST_KINDS[test->kind]) == 0) break;
        if (test->kind > ABSENT || (test->kind == AN_ATTRIBUTE && !PyUnicode_Check(test->key))) goto bad;
        if (test->kind == AN_ATTRIBUTE) {
            const char *name = PyUnicode_AsUTF8(test->key);
            if (name == NULL) goto bad;
            if (PyCell_Check(test->holder) && strcmp(name, "cell_contents") == 0) test->kind = OF_CELL;
            if (Py_TYPE(test->holder) == &PyFunction_Type && strcmp(name, "__code__") == 0) test->kind = OF_CODE;
        }
        if (test->kind == A_LENGTH && (test->length = PyLong_AsSsize_t(test->value)) < 0) goto bad;
        self->count++;
    }
    return (PyObject *)self;
bad:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "GuardTests: there is no such test");
    Py_DECREF(self);
    return NULL;
}
static int tests_traverse(Tests *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->all);
    return 0;
}
static int tests_clear(Tests *self) {
    self->count = 0;  /* the tests borrow from the tuple */
    Py_CLEAR(self->all);
    return 0;
}
static void tests_dealloc(Tests *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tests_clear(self);
    PyMem_Free(self->tests);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}
static PyMemberDef tests_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Tests, call), READONLY}, {NULL}};
static PyType_Slot tests_slots[] = {
    {Py_tp_new, tests_new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, tests_members},
    {Py_tp_traverse, tests_traverse}, {Py_tp_clear, tests_clear}, {Py_tp_dealloc, tests_dealloc}, {0, NULL}};
static PyType_Spec tests_spec = {"wayfare.native.GuardTests", sizeof(Tests), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, tests_slots};

static int init_guards(PyObject *m) { return add_type(m, "GuardTests", &tests_spec, &TestsType); }
