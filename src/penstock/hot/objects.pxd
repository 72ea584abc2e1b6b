# See objects.py. `kind` is what its caller's signature says: a type.
from cpython.object cimport PyTypeObject


cdef extern from *:
    """
    static PyObject *penstock_new(PyObject *kind) {
        static PyObject *nothing = NULL;
        if (nothing == NULL && (nothing = PyTuple_New(0)) == NULL) return NULL;
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, nothing, NULL);
    }
    """
    object penstock_new(object)


cdef inline object new(type kind):
    if kind is None:
        raise TypeError("None is no type")
    return penstock_new(kind)
